"""etcd as nodes speak it: its client, its keys, leases, and what is read and watched."""
