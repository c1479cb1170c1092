"""A pydantic model with a field for each option of a sandbox whose value is plain data."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from sandboxkit.options import CONFIG_OPTIONS


class OptionValues(BaseModel):
    """Options of a sandbox; None means not given. Unknown options and bad values do not validate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        given = self.options()
        for option in CONFIG_OPTIONS:
            if option.name in given:
                option.check(option.name, given[option.name])
        return self

    # Any: keyword arguments of Session and Session.sandbox, which check them.
    def options(self) -> dict[str, Any]:
        """Return the options that are not None as keyword arguments of Session and Session.sandbox."""
        values = {option.name: getattr(self, option.name) for option in CONFIG_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


if TYPE_CHECKING:
    # Type checkers cannot see the fields. Each subclass declares an `__init__` for them, with
    # Unpack[ConfigOptions], so that editors show the options' descriptions.
    OptionFields = OptionValues
else:
    _FIELDS = {
        option.name: (option.type | None, Field(None, description=option.meaning))
        for option in CONFIG_OPTIONS
    }
    OptionFields = create_model("OptionFields", __base__=OptionValues, **_FIELDS)
