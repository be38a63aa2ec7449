"""What the wheel tells vLLM (entry point vllm.general_plugins): the connector's name and where it
is, so that "kv_connector": "TerraceConnector" is all that its configuration says. vLLM calls it in
each of its processes, of every model: it imports nothing of the connector's, and raises nothing."""
import logging

NAME, MODULE = "TerraceConnector", "terrace.vllm"
logger = logging.getLogger("vllm.terrace")


def register() -> None:
    """However often. MultiConnector looks its children's statistics up by this name, too."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (  # pylint: disable=C0415
            KVConnectorFactory)
    except Exception as error:  # pylint: disable=broad-except
        logger.debug("terrace: this vLLM has no factory of connectors: %s", error)
        return
    try:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    except ValueError:
        pass  # it is registered
    except Exception as error:  # pylint: disable=broad-except
        logger.warning("terrace: the connector was not registered: %s: %s", type(error).__name__,
                       error)
