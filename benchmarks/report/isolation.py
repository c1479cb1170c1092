"""What each of the compared isolates as it is measured here, by its code and its arguments."""

ISOLATION = """\
| | between commands | from this machine | limits | network |
|---|---|---|---|---|
| sandboxkit, fresh | a sandbox each | `docker`: container, seccomp, no new privileges, no capabilities that it does not need; `local`: namespaces, seccomp, control groups | processes, memory, disk; seconds of processor | none |
| sandboxkit, `run_python`, `reuse="reset"` | processes killed, writable places emptied, another user; proven, or thrown away | as above, `strict`: read-only root | as above, for each job | none |
| docker-py, aiodocker | a container each; nothing in one that lives | Docker's defaults, root inside | none asked for | none asked for |
| epicbox | a container each | Docker's defaults, root inside | memory, processes, seconds | none |
| llm-sandbox | a container each; nothing in one that lives | Docker's defaults, root inside | none asked for | none asked for |
| swe-rex | a container each; nothing in one that lives | Docker's defaults, root inside; a server in the container listens on a port | none asked for | Docker's default: open |
| autogen-ext | nothing: files of all blocks stay | Docker's defaults, root inside; a folder of this machine is mounted | none asked for | Docker's default: open |
| nsjail | namespaces each | this machine's files, read-only; no seccomp rules asked for | nsjail's defaults | none |
| a bare process | nothing | nothing | none | open |
"""
