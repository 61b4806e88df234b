"""A rank that holds the embedded default. Argument: run id.

Prints the coordinator's address once it has it, then obeys lines of its standard input: ``fork`` makes a
child that outlives it and prints its number; the end of the input ends it.
"""

import os
import signal
import sys

from superdl.sampler.embedded.embedded import Embedded


def say(word):
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    say(Embedded(sys.argv[1]).coordinator)
    for line in sys.stdin:
        if line.strip() == "fork":
            child = os.fork()
            if not child:
                signal.pause()
            say(child)


if __name__ == "__main__":
    main()
