"""What every part of a session stands on: bytes of a connection, messages, accounts, the wheel."""
