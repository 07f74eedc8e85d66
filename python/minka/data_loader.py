"""minka.DataLoader."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from minka.errors import invalid_argument
from minka.parallel_function import ParallelFunction

_END = object()


class DataLoader:
    """Batches of any iterable, put where a parallelised step wants them while the steps before run.

        for batch in minka.DataLoader(batches, train_step):
            state, loss = train_step(state, batch)

    It gives trees like those of the iterable, in their order, with minka.DistributedArrays in the place of arrays; each goes to the
    devices, and to no mesh that does not read it, from a thread that also draws from the iterable. Batches that are drawn before the
    step was compiled (by its first call, or its method compile) come as they are.
    """

    def __init__(self, batches: Iterable[Any], step: ParallelFunction, *, prefetch: int = 2):
        """step: a function with one argument that is a batch.

        prefetch: batches that are drawn and put before they are asked for, which take memory on the devices; 0: none.
        Raises Error INVALID_ARGUMENT for a negative number. Iterating raises what the iterable does, and INVALID_ARGUMENT for a batch
        of another tree, shape or type than the step was compiled for.
        """
        if prefetch < 0:
            raise invalid_argument(f"minka.DataLoader: prefetch is {prefetch}; 0 or more batches can be drawn ahead")
        self._batches = batches
        self._step = step
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[Any]:
        if self._prefetch == 0:
            return (self._step.put_batch(batch) for batch in self._batches)
        return self._ahead()

    def _ahead(self) -> Iterator[Any]:
        ready: queue.SimpleQueue = queue.SimpleQueue()
        free = threading.Semaphore(self._prefetch)
        is_over = threading.Event()

        def fill():
            try:
                source = iter(self._batches)
                while free.acquire() and not is_over.is_set():
                    batch = next(source, _END)
                    ready.put((batch if batch is _END else self._step.put_batch(batch), None))
                    if batch is _END:
                        return
            except BaseException as error:  # raised where the batch is asked for
                ready.put((_END, error))

        thread = threading.Thread(target=fill, name="minka.DataLoader", daemon=True)
        thread.start()
        try:
            while True:
                batch, error = ready.get()
                if error is not None:
                    raise error
                if batch is _END:
                    return
                free.release()
                yield batch
        finally:
            is_over.set()
            free.release()
            thread.join()
