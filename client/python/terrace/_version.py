"""Which version this package is: CMakeLists.txt of the sources says so, and what is installed
carries it in its metadata."""
import pathlib
import re


def version_of_package() -> str:
    """Of the sources, where it is run from them; "0+unknown" where nothing tells."""
    here = pathlib.Path(__file__).resolve()
    if here.parts[-4:-2] == ("client", "python"):
        try:
            said = re.search(r"^project\(terrace VERSION ([0-9.]+)",
                             (here.parents[3] / "CMakeLists.txt").read_text(), re.M)
        except OSError:
            said = None
        if said is not None:
            return said[1]
    from importlib import metadata  # pylint: disable=import-outside-toplevel
    try:
        return metadata.version("terrace-kv")
    except metadata.PackageNotFoundError:
        return "0+unknown"
