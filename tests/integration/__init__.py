"""Real peers against a broker that twistd started."""
