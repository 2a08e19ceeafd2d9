"""The log of the process: levels by module, lines, a bounded queue, and the thread that writes it.

    loggers of Twisted --> Log --+                            +--> standard error
    events of the broker --------+-> level? --> line --> queue +--> a file, with rotation
                                                  |            +--> the journal
                                                  '-- full: dropped, counted, told

Promise: nobody waits for the log. Whoever reads it, or does not, the broker serves; what could not
be written is counted, and told as soon as lines are taken again.
"""
