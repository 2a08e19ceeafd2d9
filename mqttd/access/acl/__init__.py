"""Access rules: from the text of acl.conf to an answer, and why it is that."""
