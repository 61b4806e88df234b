"""Sees which threads count as grpc's in a process that has none of them; fails if it is the wrong ones."""

import ctypes
import threading

from superdl.sampler.rpc.forking import GrpcThreads

LIFETIME_US = 300_000


def start_thread_of_c():
    """A thread that Python knows nothing of, with its maker's name, as grpc's are before they first run."""
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    start = ctypes.cast(libc.usleep, ctypes.c_void_p)
    if libc.pthread_create(ctypes.byref(thread), None, start, ctypes.c_void_p(LIFETIME_US)):
        raise OSError("no thread")
    libc.pthread_detach(thread)


def main():
    threads = GrpcThreads()
    start_thread_of_c()
    assert not threads.running(), "it came without a channel"

    threads.expect()
    running, end = threading.Event(), threading.Event()
    ours = threading.Thread(target=lambda: (running.set(), end.wait(20)))
    ours.start()
    assert running.wait(20)
    assert threads.wait_until_gone(20.0), "Python's threads are not grpc's"
    end.set()
    ours.join()

    start_thread_of_c()
    assert threads.running(), "it came with a channel"
    assert threads.wait_until_gone(20.0)


if __name__ == "__main__":
    main()
