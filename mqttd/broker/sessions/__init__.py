"""The sessions of a broker: who has one, who takes it over, how it is kept, when it ends."""
