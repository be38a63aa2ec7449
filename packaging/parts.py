#!/usr/bin/env python3
"""usage: parts.py BUILD VERSION EPOCH OUTPUT

The list of what went into the programs of BUILD, as SPDX 2.3 (JSON): each program and library with
its SHA-256, the Debian packages it loads at run time, and those whose headers or static libraries
were compiled in, as the build's own records of dependencies say. REQUIRES: BUILD is complete.
"""
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PRODUCTS = ("daemon/terraced", "tools/terrace", "client/libterrace.so.1.0.0",
            "cuda/libterrace_cuda.so")
CREATOR = "Tool: terrace-parts"
# Part of every C and C++ program, whether a header of theirs is named or not.
RUNTIME = {"libgcc-12-dev", "libstdc++-12-dev"}


def read(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=True).stdout


def headers_of(build):
    """System headers that any source of the product included."""
    found = set()
    for line in read("ninja", "-C", build, "-t", "deps").splitlines():
        path = line.strip()
        if line.startswith(" ") and path.startswith(("/usr/", "/usr/local/cuda")):
            found.add(path)
    return found


def libraries_of(program):
    return set(re.findall(r"=> (/\S+)", read("ldd", program)))


def packages_of(paths):
    """Debian packages that own `paths`; /lib and /usr/lib are one folder, known by either name."""
    names = sorted({spelt for path in paths for real in {path, str(pathlib.Path(path).resolve())}
                    for spelt in (real, re.sub(r"^/usr/lib", "/lib", real),
                                  re.sub(r"^/lib", "/usr/lib", real))})
    found = set()
    for start in range(0, len(names), 500):
        done = subprocess.run(["dpkg-query", "-S", *names[start:start + 500]], text=True,
                              capture_output=True, check=False)
        found |= {line.split(":")[0] for line in done.stdout.splitlines()
                  if not line.startswith("diversion")}
    return found


class Document:
    def __init__(self, version, commit, epoch):
        self.version = version
        when = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
        self.body = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"terrace-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/terrace-{version}-{commit}",
            "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": [CREATOR]},
            "packages": [], "files": [], "relationships": []}

    def relate(self, one, kind, other):
        self.body["relationships"].append({"spdxElementId": one, "relationshipType": kind,
                                           "relatedSpdxElement": other})

    def add_terrace(self, commit):
        self.body["packages"].append(
            {"SPDXID": "SPDXRef-terrace", "name": "terrace", "versionInfo": self.version,
             "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
             "copyrightText": "NOASSERTION", "sourceInfo": f"git commit {commit}"})
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-terrace")

    def add_debian(self, name):
        query = read("dpkg-query", "-W", "-f=${Version} ${Architecture} ${source:Package}\n", name)
        version, architecture, source = query.splitlines()[0].split()
        identifier = "SPDXRef-deb-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)
        self.body["packages"].append(
            {"SPDXID": identifier, "name": name, "versionInfo": version,
             "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
             "copyrightText": "NOASSERTION", "sourceInfo": f"Debian source package {source}",
             "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                               "referenceLocator":
                               f"pkg:deb/debian/{name}@{version}?arch={architecture}"}]})
        return identifier

    def add_file(self, path):
        """As it is shipped: stripped."""
        with tempfile.NamedTemporaryFile() as stripped:
            subprocess.run(["strip", "-o", stripped.name, path], check=True)
            content = pathlib.Path(stripped.name).read_bytes()
        identifier = f"SPDXRef-file-{path.name}"
        self.body["files"].append(
            {"SPDXID": identifier, "fileName": f"./{path.name}", "fileTypes": ["BINARY"],
             "checksums": [{"algorithm": "SHA1", "checksumValue":
                            hashlib.sha1(content).hexdigest()},
                           {"algorithm": "SHA256", "checksumValue":
                            hashlib.sha256(content).hexdigest()}],
             "licenseConcluded": "Apache-2.0", "copyrightText": "NOASSERTION"})
        self.relate("SPDXRef-terrace", "CONTAINS", identifier)
        return identifier


def main():
    build, version, epoch, output = sys.argv[1:]
    build = pathlib.Path(build)
    products = [build / name for name in PRODUCTS if (build / name).exists()]
    commit = re.search(r"\((\S+)\)", read(build / PRODUCTS[0], "--version"))[1]
    document = Document(version, commit, int(epoch))
    document.add_terrace(commit)
    loaded = {path: packages_of(libraries_of(path)) for path in products}
    built_in = packages_of(headers_of(build)) | RUNTIME
    identifiers = {name: document.add_debian(name)
                   for name in sorted(built_in.union(*loaded.values()))}
    for path in products:
        file = document.add_file(path)
        for name in sorted(loaded[path]):
            document.relate(file, "DYNAMIC_LINK", identifiers[name])
    for name in sorted(built_in):
        document.relate(identifiers[name], "BUILD_DEPENDENCY_OF", "SPDXRef-terrace")
    pathlib.Path(output).write_text(json.dumps(document.body, indent=1) + "\n")


if __name__ == "__main__":
    main()
