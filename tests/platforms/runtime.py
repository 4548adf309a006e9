#!/usr/bin/env python3
"""An OCI runtime that lowers limits to what this machine allows, and is runc in all else.

Compose files ask for an unlimited memlock; where root has no CAP_SYS_RESOURCE, runc fails at that.
"""
import json
import os
import resource
import sys

arguments = sys.argv[1:]
if {"create", "run", "restore"} & set(arguments):
    bundle = os.getcwd()
    for at, argument in enumerate(arguments):
        if argument in ("--bundle", "-b"):
            bundle = arguments[at + 1]
        elif argument.startswith("--bundle="):
            bundle = argument.split("=", 1)[1]
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        config = json.load(file)
    limits = []
    for limit in config["process"].get("rlimits") or []:
        number = getattr(resource, limit["type"], None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], hard)
            limit["soft"] = min(limit["soft"], limit["hard"])
        limits.append(limit)
    config["process"]["rlimits"] = limits
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc"] + arguments)
