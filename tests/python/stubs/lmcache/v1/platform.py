"""Events that can be polled for."""
import os


class _Event:
    def __init__(self):
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self):
        return self._fd

    def notify(self):
        os.eventfd_write(self._fd, 1)

    def close(self):
        os.close(self._fd)


def create_event_notifier():
    """A new one."""
    return _Event()


def consume_fd(number):
    """What was told is known."""
    try:
        os.eventfd_read(number)
    except BlockingIOError:
        pass
