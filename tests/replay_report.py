"""The report of `terrace replay --html` opens in a browser with its plots drawn.

A headless Chromium takes a picture of it; the picture has enough dots in the colour of each line.
Without one, exit status 77: ctest says "skipped".

    replay_report.py TERRACE
"""
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 120
WIDTH, HEIGHT = 1200, 1400
DOTS_MIN = 300  # a line of 2 pixels over some hundred
POLICIES = "lru,hazard,arc"


def write_trace(path):
    """Chats that come back, among prompts that do not."""
    dice = random.Random(3)
    chats, next_id = [[] for _ in range(30)], 1
    with open(path, "w", encoding="ascii") as out:
        for request in range(1500):
            chat = chats[dice.randrange(len(chats))] if dice.random() < 0.6 else []
            for _ in range(1 + dice.randrange(6)):
                chat.append(next_id)
                next_id += 1
            del chat[40:]
            line = {"timestamp": request * 700, "input_length": 512 * len(chat), "hash_ids": chat}
            out.write(json.dumps(line) + "\n")


def rows_of_png(data):
    """Rows of pixels, as bytes, and how many of them a pixel has. 8 bits a channel."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "a picture"
    at, packed, width, channels = 8, b"", 0, 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", chunk[:10])
            assert depth == 8, depth
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += chunk
        at += 12 + size
    raw, stride = zlib.decompress(packed), width * channels
    rows, above = [], bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        row = unfilter(raw[start], bytearray(raw[start + 1:start + 1 + stride]), above, channels)
        rows.append(row)
        above = row
    return rows, channels


def unfilter(kind, row, above, channels):
    for i, byte in enumerate(row):
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        if kind == 1:
            row[i] = (byte + left) & 255
        elif kind == 2:
            row[i] = (byte + above[i]) & 255
        elif kind == 3:
            row[i] = (byte + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            nearest = min((left, above[i], corner), key=lambda known: abs(guess - known))
            row[i] = (byte + nearest) & 255
    return row


def count_dots(png, colours):
    rows, channels = rows_of_png(png)
    counts = dict.fromkeys(colours, 0)
    wanted = {bytes.fromhex(colour[1:]): colour for colour in colours}
    for row in rows:
        for at in range(0, len(row), channels):
            colour = wanted.get(bytes(row[at:at + 3]))
            if colour:
                counts[colour] += 1
    return counts


def browse(browser, home, report, *options):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={home}/profile", *options, report.as_uri()]
    return subprocess.run(command, cwd=home, capture_output=True, check=True, timeout=PATIENCE_S)


def main(terrace):
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        print(f"skipped: none of {', '.join(BROWSERS)} is installed, so no report was looked at")
        return 77
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        trace, report, picture = home / "t.jsonl", home / "report.html", home / "report.png"
        write_trace(trace)
        subprocess.run([terrace, "replay", trace, "--policy", POLICIES, "--html", report],
                       check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)
        text = report.read_text(encoding="utf-8")
        loaded = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"'\s>)]+)", text)
        assert not loaded and "<script" not in text, f"it loads {loaded}"
        lines = re.findall(r'<polyline[^>]* stroke="(#[0-9a-f]{6})"', text)
        assert len(lines) == len(POLICIES.split(",")) + 2, lines  # the optimum; LRU's curve
        dom = browse(browser, home, report, "--dump-dom").stdout.decode()
        assert dom.count("<polyline") == len(lines), "a browser reads as many lines"
        browse(browser, home, report, f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}")
        dots = count_dots(picture.read_bytes(), sorted(set(lines)))
        assert min(dots.values()) >= DOTS_MIN, f"dots a line has: {dots}"
        print(f"{browser} drew {len(lines)} lines; dots by colour: {dots}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
