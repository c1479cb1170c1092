"""The shell scripts that run a terminal's bash in the sandbox and report the status of commands.

Each terminal has its own folder with a FIFO and the scripts below. Through the FIFO the shell
reports when a command begins and ends. The terminal's output is therefore free of reports, and a
command may be of any length. A shell that replaces or covers the first one (`exec bash`, `bash`)
reports too, through the exported PROMPT_COMMAND.
"""

REPORTS = r"""
umask 077
command -v stty >/dev/null || { echo 'stty: not found' >&2; exit 1; }
mkdir -- "$1" && mkfifo -- "$1/status" || exit 1
printf -v place %q "$1"
text=${3//@PLACE@/"$place"}
printf %s "$text" >"$1/begin"
text=${4//@PLACE@/"$place"}
printf %s "$text" >"$1/end"
text=${5//@PLACE@/"$place"}
printf %s "${text//@MARK@/"$2"}" >"$1/prompt" || exit 1
exec 9<>"$1/status"
printf 'place %s\n' "$place"
cat <&9 &
reports=$!
{
  while read -t 1 -r _ || [ "$?" -gt 128 ]; do [ -p "$1/status" ] || break; done
  kill "$reports"
} <&0 9<&- &
wait "$reports"
kill "$!"
rm -rf -- "$1"
"""
"""Arguments: the folder, the prefix of marks, then BEGIN, END and PROMPT. It prints the reports. It
removes the folder and exits at the end of its input, or if the FIFO is gone."""

BEGIN = r"""
__sandboxkit=$(<@PLACE@/command)
builtin printf 'begin\n' >@PLACE@/status
return "$1"
"""
"""Sourced before a command; $1 is the status of the previous command."""

END = r"""
__sandboxkit_status=$1
unset __sandboxkit
PROMPT_COMMAND='{ . @PLACE@/prompt "$?" || :; } 2>/dev/null'
"""
"""Sourced after a command, unless it was interrupted; $1 is its status."""

PROMPT = r"""
if [[ /dev/stdin -ef @PLACE@/terminal ]]; then
  if [[ -e @PLACE@/flush ]]; then
    command rm -f @PLACE@/flush
    builtin read -r -t 0 && builtin read -r -N 4096 -t 0.05 __sandboxkit
  fi
  unset HISTFILE __sandboxkit
  set +o history +o emacs +o vi || :
  PS1='\[\]' PS2='\[\]'
  export PROMPT_COMMAND='{ . @PLACE@/prompt "$?" || :; } 2>/dev/null'
  command stty sane -echo -onlcr </dev/tty || :
  __sandboxkit_count=$((${__sandboxkit_count-0} + 1))
  builtin printf '@MARK@%s.%s\a' "$$" "$__sandboxkit_count" >/dev/tty || :
  builtin printf 'prompt %s %s %s.%s\n' "${__sandboxkit_status-$1}" "$$" "$$" \
    "$__sandboxkit_count" >@PLACE@/status || :
  unset __sandboxkit_status
fi
"""
"""Sourced before each prompt by every bash on this terminal, and by no other bash.

PS1 prints nothing but is not empty, because some profiles do nothing if it is empty."""

SHELL = r"""
ln -s -- "$(tty)" "$1/terminal" || exit 1
trap : INT QUIT HUP
exec 8>&2 2>/dev/null
PROMPT_COMMAND=". $1/prompt 0" bash --norc --noprofile --noediting -i 2>&8 8>&-
status=$?
printf "$2%s\a" "$$" >/dev/tty
printf 'ended %s 0 %s\n' "$status" "$$" >"$1/status"
while :; do sleep 1000; done
"""
"""Starts the shell and outlives it; killing this process also kills the shell's remaining processes."""

STORE = r"""
cat >"$1/command" || exit 99
LC_ALL=C exec bash --norc -O extglob -n <"$1/command" 2>&1
"""
"""Stores a command and checks its syntax, so that no part of an unparsable command runs."""

KILL = r"""
IFS= read -r stat <"/proc/$2/stat" || exit 0
folder=$1
set -- ${stat##*) }
if [ "$6" -gt 1 ] && [ "$6" != "$3" ]; then
  : >"$folder/flush"
  kill -KILL -- "-$6"
fi
exit 0
"""
"""Kills the foreground process group of the terminal unless it is the shell's own ($2 is its pid).
Input that the group has not read is discarded before the shell can read it."""

SWEEP = r"""
for _ in 1 2 3; do
  for each in /proc/[0-9]*; do
    grep -qsF "$1" "$each/environ" && kill -KILL "${each#/proc/}" 2>/dev/null
  done
done
rm -rf -- "$1"
"""
"""Kills the remaining processes, found by their environment, if the first process was killed."""


def typed(place: str, status: int) -> bytes:
    """Return the line that makes the shell run the stored command, with `$?` set to `status`."""
    then = "||" if status else "&&"
    return (
        f"\x15 {{ . {place}/begin {status}; }} 2>/dev/null{then}"
        f'eval -- "$__sandboxkit";{{ . {place}/end "$?"||:; }} 2>/dev/null\n'
    ).encode()
