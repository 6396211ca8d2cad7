"""A driver for the demo without Spark, which ends in its own ways: `python -m tests.demo.driver DIRECTORY MOST`.

The file `lives` in the directory above has a line for each life of it: what becomes of that.
"""

import json
import sys
from pathlib import Path

from penstock.demo.watch import QUERIES


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(top: Path) -> int:
    lives = top.parent / "lives"
    how, *rest = lives.read_text().splitlines()
    lives.write_text("\n".join(rest))
    say(ready=True)
    for query in QUERIES:
        say(query=query, batch=0, rows=1, took_s=0.1, offset=1)
    if how == "fails":
        raise RuntimeError("Task not serializable")
    sys.stdin.readline()
    if how == "fails at the end":
        raise RuntimeError("Task not serializable, again")
    say(finished=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
