"""What the scheduler's half knows of a request."""
import dataclasses
from typing import Any, List, Optional, Tuple

from ..calls import Hints, Keys
from ..requests import Pending
from .arrivals import Promise
from .hints import Said
from .looks import Look
from .questions import PromptKeys
from .tables import States, Table

RETRY_PAUSE_S = 0.02


@dataclasses.dataclass
class Tracked:
    """A request vLLM has told us of."""
    request: Any
    table: Table
    keys: PromptKeys = dataclasses.field(default_factory=PromptKeys)
    computed_tokens: int = 0  # when its last step began
    stored_count: int = 0  # blocks that were offered to the store, or came from it
    noted_count: int = 0  # of which a draft's book has that they were computed, or were there
    skip_count: int = 0  # of the lookup: blocks vLLM has itself
    fresh_from: int = 0  # blocks behind those that vLLM has itself, or we have loaded
    awaits_step: bool = False  # it has blocks, and none of its tokens was scheduled since: another
    # connector may be loading into them
    spoiled_from: Optional[int] = None  # the first block that a load did not fill, whoever's: what
    # was computed behind it is wrong, too, and nothing from there on is stored until it is computed
    look: Optional[Look] = None  # at its adapter's files, that it waits for
    is_look_late: bool = False  # it has waited as long as it may: what is not known then is a miss
    lookup: Optional[Pending] = None
    promise: Optional[Promise] = None  # of the lookup, once it has been answered
    states: States = dataclasses.field(default_factory=dict)  # handed over
    is_lost: bool = False  # a load of it failed: it is computed, whatever is there
    has_ended: bool = False  # vLLM has no use for it any more
    retry_at: float = 0.0  # blocks that found no room are offered again, not before then,
    retry_pause_s: float = RETRY_PAUSE_S  # and then after this
    retry_until: float = 0.0  # 0: none has found no room
    is_stale: bool = False  # the weights have changed since it began: nothing of it is stored
    passed_at: Optional[int] = None  # the daemon has blocks that are likelier to be asked for than
    # this one and those behind it: they are not offered
    drafted_tokens: Optional[int] = None  # a step has left out the draft from there on; None: none
    said: Said = Said()
    store_count: int = 0  # reserved, or in the workers
    endings: List[Tuple[Keys, Hints]] = dataclasses.field(default_factory=list)  # to be said when
    # all of them have ended
