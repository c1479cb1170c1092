"""Find all sandboxes of one run by tag, including detached ones, and remove them.

`sandboxkit cleanup --tag run:ID` does the same from a terminal.
"""

import uuid

from sandboxkit import Sandbox, Session

RUN = f"run:{uuid.uuid4().hex[:8]}"

# A detached sandbox outlives its session, and even its process; its lifetime still ends it.
with Session(tags=("training", RUN), detach=True, lifetime=600) as session:
    for worker in range(3):
        session.sandbox(tags={"worker": str(worker)}).start().result()

with Session() as session:  # a later program, perhaps on another day
    found = session.list(tags=RUN).result()
    print("found workers", sorted(info.tags["worker"] for info in found))
    print("worker 1 alone:", len(session.list(tags=(RUN, "worker:1")).result()))

    for info in found:
        sandbox = session.from_id(info.id).result()
        sandbox.stop().result()
    print("left:", len(session.list(tags=RUN).result()))

print("also without a session:", Sandbox.list(tags=RUN).result())
