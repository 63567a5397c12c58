# Says which signals it gets, and answers each line of its input with all it got
# so far. Runs until "end".
import os, signal, sys

got = []

def note(num, frame):
    got.append(signal.Signals(num).name)

for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "WINCH"):
    if signal.getsignal(getattr(signal, "SIG" + name)) != signal.SIG_IGN:
        signal.signal(getattr(signal, "SIG" + name), note)
if "own-group" in sys.argv:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
print("ready", flush=True)
while True:
    line = os.read(0, 100).decode().strip()
    if line == "end" or not line:
        break
    if line == "stop-self":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif line == "stop-group":
        os.kill(0, signal.SIGTSTP)
    elif line == "size":
        s = os.get_terminal_size(0)
        print("size", s.lines, s.columns, flush=True)
        continue
    said = got[:]
    del got[: len(said)]  # not one that comes meanwhile
    print("<" + " ".join(said) + ">", flush=True)
