"""Several machines as one broker: etcd says who is there and who wants what, a mesh carries it."""
