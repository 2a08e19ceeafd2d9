"""Clients that play random sequences at mqttd and at a model of the standard, in lockstep.

    python -m fuzz.lockstep 2000 --seed 1
    python -m fuzz.lockstep 720 --seed 1 --kill
    python -m fuzz.lockstep 1 --seed 77 --profile wills --beside 127.0.0.1:1883

    generating  a seed and a profile -> a Sequence of steps (`steps`), the same each time
    model       a broker of few words (`reading`, `session`), the standard as code
    playing     a step at the model, then at the broker (`clients`, `writing`), and what was `seen`
    reducing    the shortest sequence that still differs
    running     many at once, around a kill; `homes`: an mqttd that is started and killed

Each client sees its answers and messages in a form in which two brokers that keep the standard are
equal; the first step in which it does not see what the model says is a difference. A packet that no
broker may send is one, too.
"""
