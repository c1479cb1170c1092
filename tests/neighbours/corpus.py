"""All attacks, by name."""

from tests.neighbours import filtered, of_the_machine, per_namespace, per_user

ATTACKS = {
    attack.name: attack
    for part in (per_user, per_namespace, of_the_machine, filtered)
    for attack in part.ATTACKS
}
