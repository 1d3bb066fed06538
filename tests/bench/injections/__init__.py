"""How often the policy of tools asks in vain, and whether it misses an injected call: AgentDojo without a model."""
