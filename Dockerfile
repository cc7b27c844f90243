# The image of a service: docker build --build-arg SERVICE=operator|stunnerd|auth --build-arg VERSION=v0.1.0 . It equals the image that `make images` packs without a
# container engine, except for the list of certificate authorities, which is that of the build stage.
ARG SERVICE

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG SERVICE TARGETARCH VERSION
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH GOWORK=off \
    go -C services/$SERVICE build -trimpath -ldflags="-s -w -X github.com/stunner-gateway/stunner/services/api/telemetry.release=$VERSION" -o /out/$SERVICE .

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /usr/local/bin/
ENV PATH=/usr/local/bin
WORKDIR /
USER 65532:65532

# The image has no shell to expand a variable at start, so each service has a stage of its own.
FROM base AS operator
ENTRYPOINT ["/usr/local/bin/operator"]

FROM base AS stunnerd
ENTRYPOINT ["/usr/local/bin/stunnerd"]

FROM base AS auth
ENTRYPOINT ["/usr/local/bin/auth"]

FROM $SERVICE
