"""Where connectors are found by their names."""


class KVConnectorFactory:
    """Of one process."""
    registered = {}

    @classmethod
    def register_connector(cls, name, module_path, class_name):
        if name in cls.registered:
            raise ValueError(f"{name} is registered")
        cls.registered[name] = (module_path, class_name)
