"""One cell of a sweep as a process of its own: `specdec.main` that ends when its sweep does.

  python -m specdec.modes.cell PARENT --mode=… --gin_file=… --output=…
"""

import os
import sys
import threading
import time

from specdec import main


def end_with(parent: int, interval: float = 0.5) -> None:
  """Ends this process, from a thread, once `parent` is no longer its parent: a killed sweep leaves no cell behind."""

  def watch():
    while os.getppid() == parent:
      time.sleep(interval)
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
  end_with(int(sys.argv.pop(1)))
  main.run()
