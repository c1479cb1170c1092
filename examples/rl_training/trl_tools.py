"""Python and bash as stateless tools of a model; each call runs in a new sandbox.

GRPOTrainer(tools=tools.functions, ...).train()
"""

from sandboxkit.integrations.trl import SandboxTools

with SandboxTools(timeout=10, tags="rl-training") as tools:
    print(tools.python("print(2 ** 64)"))
    print(tools.bash("echo kept > note; ls"))
    print(tools.bash("cat note"))  # no state is kept between calls
    for function in tools.functions:
        print(f"{function.__name__}: {(function.__doc__ or '').split('.')[0].strip()}")
