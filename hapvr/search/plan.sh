#!/bin/bash
# A plan of `hapvr duplicates`: review it. `bash PLAN.sh` prints what it would do; `bash PLAN.sh --act` does it:
# files of the same bytes become hard links to the one that is kept, other copies move to $ASIDE. Nothing is deleted.
set -u
act=${1:-} ASIDE=${ASIDE:-./copies-aside} failed=0
as_planned() { # file, bytes, SHA-256
  [ -f "$1" ] && [ ! -L "$1" ] && [ "$(wc -c < "$1")" -eq "$2" ] && [ "$(sha256sum < "$1")" = "$3  -" ] && return
  printf 'gone, or changed since the plan was made; left alone: %q\n' "$1" >&2; failed=1; return 1
}
run() { if [ "$act" = --act ]; then "$@" || { failed=1; return 1; }; else printf '%q ' would: "$@"; echo; fi; }
link() { # kept, bytes, SHA-256, copy, bytes, SHA-256
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && [ ! "$1" -ef "$4" ] || return
  run ln -T -- "$1" "$4.$3" && run mv -fT -- "$4.$3" "$4"
}
move() { # the same
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && run mkdir -p -- "$ASIDE" || return
  if [ -e "$ASIDE/$6-${4##*/}" ]; then printf 'there already: %q\n' "$ASIDE/$6-${4##*/}" >&2; failed=1
  else run mv -nT -- "$4" "$ASIDE/$6-${4##*/}"; fi
}
