"""Keeps schemathesis from running what it makes up, and from waiting."""

import schemathesis

SIZES = ("replicas_min", "replicas", "replicas_max")


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.operation.label == "POST /v1/jobs" and isinstance(case.body, dict):
        make_harmless(case.body)
    # Long polls and logs that are followed go on for as long as they are told.
    query = case.query if isinstance(case.query, dict) else {}
    if str(query.get("follow")).lower() == "true":
        query["follow"] = "false"
    if str(query.get("wait_s", "")).replace(".", "", 1).isdigit():
        query["wait_s"] = "0.1"


def make_harmless(job):
    # What is submitted runs on this machine, so nothing that was made up does.
    if job.get("command"):
        job["command"] = ["true"]
    # A schema cannot say that sizes are in order.
    if all(isinstance(job.get(size), int) and job[size] > 0 for size in SIZES):
        job.update(zip(SIZES, sorted(job[size] for size in SIZES)))
