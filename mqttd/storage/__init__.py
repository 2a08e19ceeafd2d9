"""What outlasts the process: sessions, their messages, retained messages, in one SQLite file.

    Journal --records--> Group --a turn or more--> Writer (a thread) --one transaction--> file
       ^                                              |
       '------------- written: promises kept ---------'

`ledger` says what a record is and when a block of them may go, `writer` writes groups, `database`
knows the file and its schema, `recovery` reads it again.
"""
