"""Add a user to a password file, or give one a new password: add_user.py FILE USER"""

import getpass
import sys

from mqttd.access.username import add_user

path, user = sys.argv[1:]
password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
new = add_user(path, user, password)
print(f"{user}: {'added' if new else 'new password'}")
