"""Which weights a rank's pages are of, found from how SGLang flushes its cache."""
import logging
import os
from typing import Optional

from ..epochs import mask_of, of_nobody_else, of_version

logger = logging.getLogger("sglang.terrace")


def _weight_version() -> Optional[str]:
    """As SGLang was told with the last update of the weights, or at its start; in this process all
    ranks of it are one. None: this SGLang does not say."""
    try:
        from sglang.srt.runtime_context import get_serving  # pylint: disable=C0415

        return str(get_serving().weight_version)
    except Exception:  # pylint: disable=broad-except
        return None


def _launch() -> str:
    """A word that the ranks of one instance on one host have in common, and nobody else."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{os.getppid()}/stat", encoding="ascii", errors="replace") as file:
            began = file.read().rpartition(")")[2].split()[19]  # field 22: in ticks since the boot
        return f"{boot} {os.getppid()} {began}"
    except (OSError, IndexError):
        return of_nobody_else()


class Epoch:
    """Which weights this rank's pages are of. Ranks agree without a word: they are flushed alike,
    and told of versions alike."""

    def __init__(self, is_kept: bool, dp_rank: int):
        self._is_kept = is_kept
        self._launch = f"{_launch()} {dp_rank}"  # replicas may be updated apart
        self._flush_count = 0
        self._version = _weight_version()
        self.mask = b""

    @property
    def is_certain(self) -> bool:
        """Not between an update and the flush behind it: pages of both weights are about."""
        return self._is_kept or _weight_version() == self._version

    def on_flush(self) -> None:
        """SGLang has flushed its cache."""
        if not self._is_kept:
            self.begin()

    def begin(self) -> None:
        """Nothing of before is used any more."""
        before, self._version = self._version, _weight_version()
        self._flush_count += 1
        name = (of_version(self._version)
                if self._version is not None and self._version != before
                else f"flush {self._flush_count} of {self._launch}")
        self.mask = mask_of(name)
        logger.info("terrace: keys are of epoch %r from here on", name)
