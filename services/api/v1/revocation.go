package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindRevocation is the name of the kind Revocation.
const KindRevocation = "Revocation"

// Revocation refuses ephemeral credentials before they expire: all credentials of a user that were issued before a
// given time, or a single credential. The Gateways of its namespace end the sessions with these credentials, and accept
// no new sessions with them. When the Revocation is deleted, the credentials are accepted again until they expire.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=revoke,categories=stunner
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.until`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Used by",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Credential",type=string,JSONPath=`.spec.credential`,priority=1
type Revocation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec names the credentials that are refused.
	// +required
	Spec RevocationSpec `json:"spec"`

	// Status reports whether the operator can use the object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// RevocationSpec names the credentials that are refused.
//
// +kubebuilder:validation:XValidation:message="set one of user and credential",rule="has(self.user) != has(self.credential)"
// +kubebuilder:validation:XValidation:message="issuedBefore is for user: a single credential is refused whenever it was issued",rule="!has(self.issuedBefore) || has(self.user)"
// +kubebuilder:validation:XValidation:message="until must be later than issuedBefore",rule="!has(self.until) || !has(self.issuedBefore) || self.until > self.issuedBefore"
type RevocationSpec struct {
	// User is the user id of the refused credentials, as sessions and `stunnerctl cred decode` show it: without expiry and
	// caveats, and with `%` and `:` as the auth service escapes them.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=508
	User string `json:"user,omitempty"`

	// Credential is the whole user name of a single ephemeral credential, such as `1893456000:alice`.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=508
	Credential string `json:"credential,omitempty"`

	// IssuedBefore is a time. Credentials of the user that were issued before it are refused. Unset means one second
	// after the creation of the object. With the file provider it must be set, because objects in a folder have no
	// creation time. A credential that contains no time of issue counts as issued before. The auth service adds the
	// time of issue to the credentials of revoked users.
	//
	// +optional
	IssuedBefore *metav1.Time `json:"issuedBefore,omitempty"`

	// Until is the time at which the last refused credential has expired. After that time the object has no effect.
	// Unset means 366 days after issuedBefore or, for a single credential, one hour after its expiry.
	//
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// Gateways are the names of the Gateways in the namespace that refuse the credentials. Unset means all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Gateways []string `json:"gateways,omitempty"`
}

// RevocationList is a list of Revocations.
//
// +kubebuilder:object:root=true
type RevocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Revocation `json:"items"`
}
