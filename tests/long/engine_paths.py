#!/usr/bin/env python3
"""What Terrace costs a real vLLM whose prompts nobody has stored, and what it leaves of the time to
the first token of one that somebody has, each against the best there can be, in one run.

usage: tests/long/engine_paths.py [--venv DIR] [--build DIR] [--rounds 15] [--repeats 5]
           [--lengths 1024,2048,4096] [--speeds dram,400,200] [--copy-threads 0]

Instances of vLLM on the CPU, alone and with Terrace, take turns; DIR is what
`tests/engines --install` makes. vLLM's own offloading connector and LMCache do not start on a CPU
build (tools/bench-engines says their reasons).
  * Miss: rounds of prompts that nobody has stored, one at a time (of several, chance decides how
    many a step computes), the same to three instances: one alone, the one with Terrace, another
    alone, and the same again backwards. Counted is the median of (seconds alone ÷ seconds with
    Terrace), which is the ratio of throughputs: at least 0.99. Storing is part of it. The floor is
    the ratio of the two that are alone. And, since chance moves both by more than a hundredth: the
    processor time of the daemon and of the library's threads in a turn with Terrace, beyond what
    the daemon takes in the others. The connector's own hooks and threads, which are Python's, are
    not in it.
  * Hit: each prompt was computed and stored before, and vLLM's own cache has been emptied. Ideal is
    what the instance alone takes for it with all of it in its own cache, which is the last chunk,
    and what its bytes take from the tier: copied from shared memory by one thread, and from a drive
    at the speed that it is held to. Counted by length and tier is the median of first token ÷
    ideal: at most 1.15.
"""
import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MISS_MIN, HIT_MAX = 0.99, 1.15
EXIT_SKIPPED = 77
MISS_TOKENS, MISS_ANSWER = 512, 4
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
         "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 512,
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "torch_dtype": "float32", "tie_word_embeddings": False, "hidden_act": "silu"}
# What is computed a byte of keys and values decides what storing them costs; a model of 8 billion
# parameters has three times as much as this one, and eleven times as much as MODEL.
MISS_MODEL = {**MODEL, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32}
# All segments are there from the start, as after the first hours of a daemon.
MEMORY = ('[daemon]\ndram_bytes = "2GiB"\nsegment_bytes = "64MiB"\nsegments_spare = 32\n[nvme]\n'
          'io = "threads"\ncapacity_bytes = "4GiB"\n')
REST_S = 0.3  # an idle instance's threads spin as long
BLOCK_TOKENS = 32


# ---- an instance: a process that reads its work, a line of JSON each, and answers with one ----


def measured_copy_s(byte_count):
    """One thread's memcpy, from memory shared as the daemon's is into an engine's."""
    file = os.memfd_create("floor")
    os.ftruncate(file, byte_count)
    shared, own = mmap.mmap(file, byte_count), mmap.mmap(-1, byte_count)
    os.close(file)
    from_, to = (ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in (shared, own))
    found = []
    for value in range(5):
        ctypes.memset(from_, value, byte_count)
        ctypes.memset(to, value, byte_count)
        began = time.monotonic()
        ctypes.memmove(to, from_, byte_count)
        found.append(time.monotonic() - began)
    return statistics.median(found)


class Instance:
    """A vLLM, its engine in a process of its own as vLLM has it."""

    def __init__(self, options):
        from vllm import LLM
        import vllm_instance

        named = vllm_instance.arguments_of(options)
        self.llm = LLM(model=options["model"], load_format="dummy", skip_tokenizer_init=True,
                       enforce_eager=True, dtype="float32", max_model_len=8192, max_num_seqs=4,
                       block_size=BLOCK_TOKENS, enable_prefix_caching=True, **named)

    def generate(self, prompts, answer_tokens):
        """Seconds, and how many tokens of the prompts were cached anywhere."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=answer_tokens, temperature=0, detokenize=False,
                                  ignore_eos=True)
        began = time.monotonic()
        outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling,
                                    use_tqdm=False)
        return time.monotonic() - began, sum(output.num_cached_tokens for output in outputs)

    def empty_own_cache(self):
        """What is stored is still held for a while."""
        deadline = time.monotonic() + 30
        while not self.llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise RuntimeError("vLLM's own cache was not emptied")
            self.generate([[4, 5, 6]], 1)


def serve(options):
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    instance = Instance(options)
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {}
        if "generate" in asked:
            answer["seconds"], answer["cached"] = instance.generate(asked["generate"],
                                                                     asked["answer"])
        if "empty" in asked:
            instance.empty_own_cache()
        if "copy" in asked:
            answer["seconds"] = measured_copy_s(asked["copy"])
        print(json.dumps(answer), file=answers, flush=True)


# ---- who asks them ----


class Asked:
    """An instance in a process of its own."""

    def __init__(self, arguments, directory, name, options):
        self.log = open(f"{directory}/{name}.log", "wb")  # pylint: disable=consider-using-with
        environment = {**os.environ, "PYTHONHASHSEED": "0", "VLLM_CPU_KVCACHE_SPACE": "3",
                       "VLLM_CPU_OMP_THREADS_BIND": f"0-{os.cpu_count() - 1}",
                       "VLLM_LOGGING_LEVEL": "WARNING",
                       "PYTHONPATH": str(ROOT / "client" / "python"),
                       "PYTHONDONTWRITEBYTECODE": "1",
                       "TERRACE_LIBRARY": str(arguments.build / "client" / "libterrace.so")}
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [arguments.venv / "bin" / "python", __file__, "--serve", json.dumps(options)],
            env=environment, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True)
        self.name, self.path = name, self.log.name
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            tail = pathlib.Path(self.path).read_text(errors="replace")[-3000:]
            sys.exit(f"the instance {self.name} ended with {self.process.wait()}:\n{tail}")
        return json.loads(line)

    def ask(self, **asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        time.sleep(REST_S)
        return answer

    def generate(self, prompts, answer_tokens=1):
        return self.ask(generate=prompts, answer=answer_tokens)

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


class Daemon:
    """A terraced above a drive whose speed can be set."""

    def __init__(self, build, directory):
        import slow_drive

        self.drive = slow_drive.SlowDrive(directory)
        self.program, self.socket = build / "daemon" / "terraced", f"{directory}/t.sock"
        self.config = pathlib.Path(directory) / "t.toml"
        self.config.write_text(MEMORY + f'paths = ["{directory}/nvme"]\n')
        self.log = open(f"{directory}/daemon.log", "wb")  # pylint: disable=consider-using-with
        self.start()

    def start(self):
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [self.program, "--config", self.config, "--socket", self.socket], stderr=self.log,
            env=self.drive.environment)

    def restart(self):
        """DRAM is empty then, and the drive is not."""
        time.sleep(2.0)  # what was stored is written
        self.end()
        self.start()

    def block_count(self):
        import terrace

        with terrace.Client(self.socket, default_timeout_s=10.0) as client:
            client.wait_connected(10.0)
            return client.stats()["domain"]["block_count"]

    def end(self):
        self.process.terminate()
        self.process.wait()


def prompt_of(chance, token_count):
    return [chance.randrange(500) for _ in range(token_count)]


def settle(daemon, ours):
    """Until a step or two have stored nothing more."""
    before = -1
    while daemon.block_count() != before:
        before = daemon.block_count()
        for _ in range(2):
            ours.generate([[4, 5, 6]])


def processor_s(pid, of_threads=""):
    """Of the threads of a process and of its children whose names begin so."""
    total_ns = 0
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            if (task / "comm").read_text().startswith(of_threads):
                total_ns += int((task / "schedstat").read_text().split()[0])
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        total_ns += sum(processor_s(child, of_threads) for child in children) * 1e9
    return total_ns / 1e9


def measure_miss(daemon, alone, ours, rounds, chance):
    """Of each round (seconds alone ÷ seconds with Terrace), (seconds of the first instance alone ÷
    of the second), and what the daemon and the library's threads took ÷ the processors' time.
    """
    ratios, floors, shares = [], [], []
    for number in range(rounds + 1):
        first, second = alone if number % 2 else alone[::-1]
        took_s, used_s = {}, {}
        for turn, instance in enumerate([first, ours, second, second, ours, first]):
            if turn % 3 == 0:
                prompt = prompt_of(chance, MISS_TOKENS)
            before_s = processor_s(daemon.process.pid) + processor_s(ours.process.pid, "terrace-")
            answer = instance.generate([prompt], MISS_ANSWER)
            if answer["cached"]:
                sys.exit(f"of prompts that nobody has stored {answer['cached']} tokens were found")
            after_s = processor_s(daemon.process.pid) + processor_s(ours.process.pid, "terrace-")
            took_s[instance] = took_s.get(instance, 0.0) + answer["seconds"]
            used_s[instance] = used_s.get(instance, 0.0) + after_s - before_s
        settle(daemon, ours)
        if number == 0:
            continue  # it warms up
        ratios.append((took_s[first] + took_s[second]) / 2 / took_s[ours])
        floors.append(took_s[alone[0]] / took_s[alone[1]])
        own_s = used_s[ours] - (used_s[first] + used_s[second]) / 2
        shares.append(own_s / took_s[ours] / os.cpu_count())
    return ratios, floors, shares


def usable_tokens(length):
    """Of a prompt that is stored: whole blocks, and at least one token is computed."""
    return (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def measure_hit(alone, ours, prompts, bytes_s):
    """(first token, ideal) of each, in seconds. bytes_s: what so many tokens' bytes take."""
    found = []
    for prompt in prompts:
        own = [alone.generate([prompt]) for _ in range(3)]
        ours.ask(empty=True)
        got = ours.generate([prompt])
        wanted = usable_tokens(len(prompt))
        if got["cached"] != wanted or any(each["cached"] != wanted for each in own):
            sys.exit(f"of {len(prompt)} tokens {got} and {own} were cached, not {wanted}")
        ideal_s = statistics.median(each["seconds"] for each in own) + bytes_s(wanted)
        found.append((got["seconds"], ideal_s))
    return found


def token_bytes():
    return 2 * 4 * MODEL["num_hidden_layers"] * MODEL["num_key_value_heads"] * MODEL["head_dim"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / "build" / "engines")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=15, help="of misses; 0: hits alone")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--speeds", default="dram,400,200",
                        help="dram, or MB/s of a drive; empty: misses alone")
    parser.add_argument("--copy-threads", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(json.loads(arguments.serve))
    arguments.build, arguments.venv = arguments.build.resolve(), arguments.venv.resolve()
    if not (arguments.venv / "bin" / "python").exists():
        print(f"SKIPPED: {arguments.venv} is not there: run tests/engines --install")
        return EXIT_SKIPPED
    os.environ["TERRACE_LIBRARY"] = str(arguments.build / "client" / "libterrace.so")
    sys.path.insert(0, str(ROOT / "client" / "python"))
    with tempfile.TemporaryDirectory(prefix="paths-") as directory:
        daemon = Daemon(arguments.build, directory)
        try:
            is_met = True
            if arguments.rounds:
                is_met &= with_instances(arguments, directory, daemon, MISS_MODEL, run_miss, 2)
            if arguments.speeds:
                is_met &= with_instances(arguments, directory, daemon, MODEL, run_hit)
        finally:
            daemon.end()
    print("VERDICT " + ("OK" if is_met else "FAILED"))
    return 0 if is_met else 1


def with_instances(arguments, directory, daemon, model, what, alone_count=1):
    """What `what` says of instances of the model, some alone, and the last with Terrace."""
    path = pathlib.Path(directory) / what.__name__
    path.mkdir()
    (path / "config.json").write_text(json.dumps(model))
    instances = []
    try:
        of_terrace = {"socket": daemon.socket, "copy_threads": arguments.copy_threads}
        for name, options in [*((f"alone{number}", {}) for number in range(alone_count)),
                              ("terrace", of_terrace)]:
            instances.append(Asked(arguments, directory, name, {"model": str(path), **options}))
        return what(arguments, daemon, *instances)
    finally:
        for instance in instances:
            instance.end()


def run_miss(arguments, daemon, *instances):
    *alone, ours = instances
    ratios, floors, shares = measure_miss(daemon, alone, ours, arguments.rounds, random.Random(1))
    ratio = statistics.median(ratios)
    print(f"miss: {ratio:.3f} of the throughput alone (median of {len(ratios)}, from "
          f"{min(ratios):.3f} to {max(ratios):.3f}; two alone {statistics.median(floors):.3f}, "
          f"from {min(floors):.3f} to {max(floors):.3f}; daemon and library's threads "
          f"{statistics.median(shares):.4f} of the processors), at least {MISS_MIN}", flush=True)
    return ratio >= MISS_MIN


def run_hit(arguments, daemon, alone, ours):
    chance, is_met = random.Random(2), True
    lengths = [int(text) for text in arguments.lengths.split(",")]
    for text in arguments.speeds.split(","):
        prompts = {length: [prompt_of(chance, length) for _ in range(arguments.repeats)]
                   for length in lengths}
        for prompt in (each for of_length in prompts.values() for each in of_length):
            alone.generate([prompt])
            ours.generate([prompt])
        settle(daemon, ours)
        if text != "dram":
            daemon.restart()
            time.sleep(2.0)
            daemon.drive.set(int(text))
            ours.generate([prompt_of(chance, 2 * BLOCK_TOKENS)])  # it is connected again
        for length in lengths:
            def bytes_s(tokens, speed=text):
                byte_count = tokens * token_bytes()
                if speed == "dram":
                    return ours.ask(copy=byte_count)["seconds"]
                return byte_count / (int(speed) * 1e6)

            found = measure_hit(alone, ours, prompts[length], bytes_s)
            over = statistics.median(got / ideal for got, ideal in found)
            is_met &= over <= HIT_MAX
            print(f"hit: {length} tokens, {'DRAM' if text == 'dram' else text + ' MB/s'}: "
                  f"{over:.2f} of the ideal ("
                  + ", ".join(f"{got * 1e3:.1f}/{ideal * 1e3:.1f}" for got, ideal in found)
                  + f" ms), at most {HIT_MAX}", flush=True)
        daemon.drive.set(0)
    return is_met


if __name__ == "__main__":
    sys.exit(main())
