"""A command for launched ranks: command.py WORKER HOME RUNS"""

import sys
import time
from pathlib import Path

from kgexp.errors import KgexpError
from kgexp.ranks import follow, launched, leading, start


def main() -> None:
    launch = launched()
    assert launch is not None
    if launch.rank > 0:
        sys.exit(follow(launch))
    with leading(launch):
        worker, home, runs = sys.argv[1:]
        folder = f"{home}/{time.time_ns()}"
        Path(folder).mkdir()
        handler = {"class": "logging.FileHandler", "filename": f"{folder}/log"}
        root = {"handlers": ["file"]}
        job_logging = {"version": 1, "disable_existing_loggers": False, "handlers": {"file": handler}, "root": root}
        values = []
        for run in range(int(runs)):
            config = {"sharding": {"ranks": "auto"}, "run": run}
            try:
                values.append(start(config, folder, job_logging, f"workers.{worker}"))
            except KgexpError as error:
                values.append(str(error))
        print(values)
        if not isinstance(values[-1], float):
            sys.exit(7)


if __name__ == "__main__":
    main()
