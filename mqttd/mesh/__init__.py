"""The streams between the processes of a broker: frames, peers, what they tell one another."""
