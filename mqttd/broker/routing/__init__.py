"""From a topic to its receivers: the trie, shared groups, other processes."""
