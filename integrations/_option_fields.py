"""A pydantic model that has a field for each option of a sandbox that plain data can hold."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from sandboxkit.options import CONFIG_OPTIONS


class OptionValues(BaseModel):
    """Options of a sandbox, each None where it is not given. Unknown options and bad values are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        given = self.options()
        for option in CONFIG_OPTIONS:
            if option.name in given:
                option.check(option.name, given[option.name])
        return self

    # Any: the keywords of Session and Session.sandbox, which check them.
    def options(self) -> dict[str, Any]:
        """Return the given options as keywords for Session and Session.sandbox."""
        values = {option.name: getattr(self, option.name) for option in CONFIG_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


if TYPE_CHECKING:
    # Type checkers cannot see the fields. Each subclass declares an `__init__` for them, with
    # Unpack[ConfigOptions], which also brings the meanings into editors.
    OptionFields = OptionValues
else:
    _FIELDS = {
        option.name: (option.type | None, Field(None, description=option.meaning))
        for option in CONFIG_OPTIONS
    }
    OptionFields = create_model("OptionFields", __base__=OptionValues, **_FIELDS)
