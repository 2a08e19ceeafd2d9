"""What is built, and what an ordinary install of it does."""
