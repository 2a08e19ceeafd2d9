"""What the tests share: packets made by hand, a raw client, brokers to talk to."""
