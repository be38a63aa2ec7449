"""KV events that say everything by themselves, for routers that know a prompt by its tokens.

The daemon knows what it holds, and when that goes; an engine knows the tokens. A Relay, on a thread
of the engine's process, puts both together: it hears the daemon's own KV events, and publishes
under the engine's topic events with tokens, parents, adapters and keys. Tokens never reach the
daemon. docs/INTEGRATIONS.md, Routers, has what routers read of it.

Needs pyzmq, and msgspec or msgpack: engines bring both.
"""
from .announcer import Announcer, Facts
from .relay import Relay, RelaySettings
from .wire import names_of

__all__ = ["Announcer", "Facts", "Relay", "RelaySettings", "names_of"]
