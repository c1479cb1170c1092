"""Shell scripts that run in a sandbox: around a command, against one, and as the main command.

They need a POSIX shell and the usual small tools, of GNU or of busybox. No vendor can end a
command with all that it started, and a stream stays open as long as anybody holds it. So a
command runs under a shell that says on both streams when it has ended, and carries a mark in
its environment by which a second command finds all that belongs to it.
"""

__all__ = [
    "KILL",
    "LOG",
    "MARK",
    "NO_MAIN",
    "RESIZE",
    "RUN",
    "RUN_ON_TERMINAL",
    "START_MAIN",
    "WAIT",
]

MARK = "SANDBOXKIT_EXEC"

# Names begin with _ so that none is a variable of the command's.
# $1 the mark, $2 bytes of further commands at the beginning of stdin (they set the arguments and
# variables that the vendor does not take), $3 "1" if the rest of stdin is the command's,
# $4 the directory or "", then the command.
_ENTER = """
_more=$2 _directory=$4
if [ -z "$_directory" ]; then
  _directory=${SANDBOXKIT_WORKDIR:-/workspace}
  [ -d "$_directory" ] || mkdir -p -- "$_directory"
fi
"""
RUN = (
    """
_mark=$1 _stdin=$3
done_with() { printf '\\036%s:%s;' "$_mark" "$1" >&2; printf '\\036%s:%s;' "$_mark" "$1"; exit 0; }
is_there() {
  case "$1" in */*) [ -f "$1" ] && [ -x "$1" ]; return;; esac
  _path=$PATH:
  while [ -n "$_path" ]; do
    _folder=${_path%%:*} _path=${_path#*:}
    [ -f "${_folder:-.}/$1" ] && [ -x "${_folder:-.}/$1" ] && return
  done
  return 1
}
"""
    + _ENTER
    + """
shift 4
[ "$_more" = 0 ] || { _more=$(head -c "$_more"; echo .); eval "${_more%.}"; }
cd -- "$_directory" 2>/dev/null || { echo "cannot enter the directory $_directory" >&2; done_with 126; }
[ "$_stdin" = 1 ] && exec 3<&0 || exec 3</dev/null
(
  command -v setsid >/dev/null || exec "$@"
  is_there "$1" && exec setsid "$@"
  exec setsid sh -c 'exec "$@"' sh "$@"  # which says why not, with the shell's status
) <&3 3<&- &
exec 4>&2 2>/dev/null 3<&- </dev/null
wait $!
_status=$?
exec 2>&4
done_with $_status
"""
)
"""Run a command with its outputs apart; each is followed by the mark and the exit status.

That ends in another character than it begins with, so that whoever looks for what begins so need
not wait for more.
"""

# $5 rows, $6 columns; the others as above, and no further commands.
RUN_ON_TERMINAL = (
    _ENTER
    + """
stty rows "$5" cols "$6"
shift 6
cd -- "$_directory" 2>/dev/null || { echo "cannot enter the directory $_directory"; exit 126; }
exec "$@"
"""
)
"""Run a command on the terminal that the vendor gives it."""

RESIZE = """
for process in $(grep -lsaF "$1$2" /proc/[0-9]*/environ); do
  stty rows "$3" cols "$4" < "${process%/environ}/fd/0" && exit 0
done
"""
"""Tell the terminal of the command with the mark $1$2 its new size."""

KILL = """
mark=$1$2 stopped=' ' clean=0
read -r self _ < /proc/self/stat
mine=" 1 $$ $self $PPID "

stop() {  # stop each process given that is not ours or stopped already
  for pid in "$@"; do
    case "$mine$stopped" in *" $pid "*) continue;; esac
    kill -STOP "$pid" 2>/dev/null || { missed=1; continue; }
    stopped="$stopped$pid " found=1
  done
}

holders() {  # who holds the outputs that the command was given
  for link in $links; do
    for end in $(find /proc/[0-9]*/fd -maxdepth 1 -lname "$link" 2>/dev/null); do
      end=${end#/proc/}
      printf '%s ' "${end%%/*}"
    done
  done
}

kin() {  # who descends from what is stopped, or is in a session that one of these leads
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null < "$stat" || continue
    pid=${line%% *} rest=${line##*) }
    set -- $rest
    case "$stopped" in *" $2 "*|*" $4 "*) printf '%s ' "$pid";; esac
  done
}

ahead() {  # catch what forks faster than it can be looked for: stop all that is new, then look
  read -r _ _ _ _ last < /proc/loadavg
  pids= pid=$((last - 30))
  while [ "$pid" -lt $((last + 300)) ]; do
    case "$mine$stopped" in *" $pid "*) ;; *) pids="$pids $pid";; esac
    pid=$((pid + 1))
  done
  kill -STOP $pids 2>/dev/null
  marked=" $(marked) "
  for pid in $pids; do
    case "$marked" in
      *" $pid "*) stopped="$stopped$pid " found=1;;
      *) kill -CONT "$pid" 2>/dev/null;;
    esac
  done
}

marked() {
  for process in $(grep -lsaF "$mark" /proc/[0-9]*/environ); do
    process=${process#/proc/}
    printf '%s ' "${process%/environ}"
  done
}

links=
for shell in $(printf %s "$mark" | grep -lsaF -f - /proc/[0-9]*/cmdline); do
  for end in 1 2; do
    link=$(readlink "${shell%/cmdline}/fd/$end") || continue
    case "$link" in
      pipe:*|socket:*)
        link=${link%]}
        links="$links ${link%%[*}\\\\[${link#*[}\\\\]";;
      */.sandboxkit-*) links="$links ${link%% *}*";;  # which may be followed by (deleted)
    esac
  done
done

while [ "$clean" -lt 3 ]; do
  found= missed=
  read -r _ _ _ _ before < /proc/loadavg
  stop $(marked)
  read -r _ _ _ _ last < /proc/loadavg
  # More new processes than the two of the search: one of them may have passed it by.
  [ -z "$missed" ] && [ $((last - before)) -le 2 ] || ahead
  stop $(holders)
  stop $(kin)
  if [ -n "$found$missed" ]; then clean=0; continue; fi
  [ "$stopped" = ' ' ] || kill -KILL $stopped 2>/dev/null
  stopped=' '
  clean=$((clean + 1))
done
"""
"""End everything of the command with the mark $1$2, in halves so that it is in no command line."""

START_MAIN = """
mkdir -p /tmp/.sandboxkit && : >/tmp/.sandboxkit/log || exit
setsid sh -c '
  (exec "$@") </dev/null >/tmp/.sandboxkit/log 2>&1
  echo $? >/tmp/.sandboxkit/new && mv /tmp/.sandboxkit/new /tmp/.sandboxkit/status
' sh "$@" </dev/null >/dev/null 2>&1 &
"""
"""Start the main command, the arguments, and return."""

NO_MAIN = 44
LOG = f"[ -e /tmp/.sandboxkit/log ] || exit {NO_MAIN}; exec tail -c 1048576 /tmp/.sandboxkit/log"
WAIT = f"""
[ -e /tmp/.sandboxkit/log ] || exit {NO_MAIN}
while [ ! -e /tmp/.sandboxkit/status ]; do sleep 0.1; done
exec cat /tmp/.sandboxkit/status
"""
"""Both exit with NO_MAIN where there is no main command."""
