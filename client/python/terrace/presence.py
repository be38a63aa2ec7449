"""Says in an engine's log when the daemon is there, lost, and back, when an operator has it
bypassed, and when the engine may only read: once each."""
import logging
import os
import time
from typing import Any, Optional

from .errors import TerraceError


class Presence:
    """Looked at now and then by whoever has a client: a look costs next to nothing."""

    def __init__(self, logger: logging.Logger, socket_path: str):
        self._logger = logger
        self._socket_path = socket_path
        self._boot_id = 0  # of the daemon there was last; 0: none yet
        self._lost_at: Optional[float] = None
        self._is_bypassed = False
        self._is_reader = False

    def look(self, client: Any) -> None:
        """Says what has changed since the last look."""
        try:
            boot_id = client.boot_id
            is_bypassed = client.is_bypassed
            is_reader = client.is_reader
        except TerraceError:
            return  # closed
        self._look_at_bypass(is_bypassed)
        self._look_at_role(is_reader)
        if boot_id == 0:
            if self._boot_id != 0 and self._lost_at is None:
                self._lost_at = time.monotonic()
                self._logger.warning(
                    "terrace: the daemon at %s is lost; the engine serves on without the cache "
                    "until it is back", self._socket_path)
            return
        if self._boot_id == 0:
            self._logger.info("terrace: connected to the daemon at %s", self._socket_path)
        elif self._lost_at is not None:
            self._logger.info(
                "terrace: the daemon at %s is back after %.1f s%s", self._socket_path,
                time.monotonic() - self._lost_at,
                "" if boot_id == self._boot_id else ", started anew")
        elif boot_id != self._boot_id:
            self._logger.warning("terrace: the daemon at %s was lost, and is back, started anew",
                                 self._socket_path)
        self._boot_id, self._lost_at = boot_id, None

    def _look_at_role(self, is_reader: bool) -> None:
        if is_reader == self._is_reader:
            return
        self._is_reader = is_reader
        if is_reader:
            self._logger.warning(
                "terrace: uid %d may only read in the domain at %s: the engine loads from the "
                "cache and stores nothing; writer_uids of the domain names who may store",
                os.getuid(), self._socket_path)
        else:
            self._logger.info("terrace: the engine may store in the domain at %s",
                              self._socket_path)

    def _look_at_bypass(self, is_bypassed: bool) -> None:
        if is_bypassed == self._is_bypassed:
            return
        self._is_bypassed = is_bypassed
        if is_bypassed:
            self._logger.warning(
                "terrace: an operator has the domain at %s bypassed (terrace drain --bypass); the "
                "engine serves on without the cache until `terrace drain --resume`",
                self._socket_path)
        else:
            self._logger.info("terrace: the domain at %s is not bypassed any more",
                              self._socket_path)
