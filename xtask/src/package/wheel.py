"""Packs a folder as a wheel: wheel.py FOLDER WHEEL. The same bytes from the same files."""

import base64
import hashlib
import pathlib
import sys
import zipfile

folder, wheel = map(pathlib.Path, sys.argv[1:])
files = sorted(path for path in folder.rglob("*") if path.is_file())
(facts,) = folder.glob("*.dist-info")
record = []
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    def add(name, data, mode):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, data)

    for path in files:
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")
        add(name, data, path.stat().st_mode & 0o777)
    name = f"{facts.name}/RECORD"
    add(name, "\n".join([*record, f"{name},,", ""]).encode(), 0o644)
