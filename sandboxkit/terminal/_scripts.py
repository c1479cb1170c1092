"""The programs of a terminal in the sandbox: who starts its bash, and what that bash reports.

In a folder of the terminal's own there are a FIFO, through which the shell says that a command has
begun and how it ended, and the texts that the shell reads for that. So nothing of this is in the
terminal's output, a command may be of any length, and a shell that another replaces or covers
(`exec bash`, `bash`) reports by itself, through the exported PROMPT_COMMAND.
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
"""$1 is the folder, $2 the beginning of marks, then the texts below. Its output are the reports. It
ends, and removes the folder, at the end of its input, and when somebody has taken its parts away."""

BEGIN = r"""
__sandboxkit=$(<@PLACE@/command)
builtin printf 'begin\n' >@PLACE@/status
return "$1"
"""
"""Sourced before a command; $1 is the status of the one before."""

END = r"""
__sandboxkit_status=$1
unset __sandboxkit
PROMPT_COMMAND='{ . @PLACE@/prompt "$?" || :; } 2>/dev/null'
"""
"""Sourced after it, unless it was interrupted."""

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
"""Sourced before each prompt, by every bash of this terminal and none of another.

PS1 draws nothing and is not empty: there are profiles that do nothing where it is."""

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
"""It outlives the shell until it is killed, and with it all that the shell left running."""

STORE = r"""
cat >"$1/command" || exit 99
LC_ALL=C exec bash --norc -O extglob -n <"$1/command" 2>&1
"""
"""Nothing of a command runs that cannot be read to its end."""

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
"""$2 is the shell; what has its terminal's foreground and is not the shell itself is killed,
and what it has not read of its input is not the shell's."""

SWEEP = r"""
for _ in 1 2 3; do
  for each in /proc/[0-9]*; do
    grep -qsF "$1" "$each/environ" && kill -KILL "${each#/proc/}" 2>/dev/null
  done
done
rm -rf -- "$1"
"""
"""For a terminal whose first process was killed: the rest is known by its environment."""


def typed(place: str, status: int) -> bytes:
    """The line that makes the shell run the stored command, with `$?` as the last one left it."""
    then = "||" if status else "&&"
    return (
        f"\x15 {{ . {place}/begin {status}; }} 2>/dev/null{then}"
        f'eval -- "$__sandboxkit";{{ . {place}/end "$?"||:; }} 2>/dev/null\n'
    ).encode()
