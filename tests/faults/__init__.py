"""One fault injector: a proxy in front of a real server, and the servers of the emulators.

Emulators take faults by a name and details (`Rules`), the proxy takes a plan in Python. Both know the same faults.
"""

from tests.faults._plan import Direction as Direction
from tests.faults._plan import Drop as Drop
from tests.faults._plan import Fault as Fault
from tests.faults._plan import Half as Half
from tests.faults._plan import HttpAnswer as HttpAnswer
from tests.faults._plan import Late as Late
from tests.faults._plan import Plan as Plan
from tests.faults._plan import Request as Request
from tests.faults._plan import Reset as Reset
from tests.faults._plan import Stall as Stall
from tests.faults._plan import too_many_requests as too_many_requests
from tests.faults._proxy import FaultProxy as FaultProxy
