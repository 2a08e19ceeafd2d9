"""Which filters nodes want: written to etcd in chunks, and read of the others."""
