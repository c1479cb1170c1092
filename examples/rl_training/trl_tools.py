"""Python and bash as tools of a model that only computes something: each call is a new sandbox.

GRPOTrainer(tools=tools.functions, ...).train()
"""

from sandboxkit.integrations.trl import SandboxTools

with SandboxTools(timeout=10, tags="rl-training") as tools:
    print(tools.python("print(2 ** 64)"))
    print(tools.bash("echo kept > note; ls"))
    print(tools.bash("cat note"))  # nothing lasts from one call to the next
    for function in tools.functions:
        print(f"{function.__name__}: {(function.__doc__ or '').split('.')[0].strip()}")
