-- The rights of a role that uses the store, and cannot change its tables.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.format TO {role};
GRANT USAGE ON SEQUENCE {schema}.revision TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.entry, {schema}.part, {schema}.post, {schema}.value, {schema}.worker TO {role};
